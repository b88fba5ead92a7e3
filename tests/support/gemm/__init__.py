"""The GEMM room of the workshop: shapes, plan, the runner, and what is made of its samples. Never imports a suite."""
