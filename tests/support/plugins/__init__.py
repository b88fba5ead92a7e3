"""What pytest sees of the workshop: options, parameters, rows, servers, the gate. Joined in the root conftest."""
