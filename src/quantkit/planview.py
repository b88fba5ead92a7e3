"""A plan as text and as one JSON object, with what it predicts for a named card.

Pure but for the disk's free space, which is passed in. `cli` prints it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from quantkit.config import quantization_config
from quantkit.eligibility import misfits
from quantkit.machines import Machine
from quantkit.memory import GIB, KV_BASIS, UTILIZATION, kv_bytes_per_token, kv_tokens, loaded_gib
from quantkit.model import Role
from quantkit.plan import Plan


def _decisions(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "name": decision.tensor.name,
            "role": decision.tensor.role.value,
            "shape": list(decision.tensor.shape),
            "scheme": decision.scheme.name if decision.scheme else None,
            "rule": decision.rule,
            "stored": [
                {
                    "name": stored.name,
                    "dtype": stored.dtype,
                    "shape": list(stored.shape),
                    "bytes": stored.size_bytes,
                }
                for module in decision.stored
                for stored in module
            ],
        }
        for decision in plan.decisions
    ]


def _counts(plan: Plan) -> dict[str, int]:
    linears = [d for d in plan.decisions if d.tensor.role is Role.LINEAR]
    return {
        "linears": len(linears),
        "linear_values": sum(d.tensor.values for d in linears),
        "copied": sum(d.scheme is None for d in plan.decisions),
        "left_out": len(plan.dropped),
        "groups": sum(
            d.tensor.values // d.scheme.group_size for d in plan.decisions if d.scheme and d.scheme.group_size
        ),
    }


def plan_to_dict(plan: Plan, machine: Machine, ranks: int, free_bytes: int) -> dict[str, Any]:
    """Everything `quantkit plan --json` says."""
    tokens = kv_tokens(plan, machine.memory_gib) if machine.memory_gib else None
    return {
        "format": plan.format.name,
        **_counts(plan),
        "tensor_bytes": plan.tensor_bytes,
        "file_bytes": plan.file_bytes,
        "shards": [{"name": s.name, "bytes": s.size_bytes, "tensors": len(s.tensors)} for s in plan.shards],
        "loaded_gib": loaded_gib(plan),
        "kv_bytes_per_token": kv_bytes_per_token(plan.inventory.config),
        "machine": {"name": machine.name, "memory_gib": machine.memory_gib, "utilization": UTILIZATION},
        "kv_tokens": tokens,
        "kv_tokens_basis": KV_BASIS if tokens is not None else "no card memory is known for this machine",
        "tensor_parallel": ranks,
        "not_eligible": [asdict(m) for m in misfits(plan, on_cpu=machine.arch == "cpu", ranks=ranks)],
        "disk_free_bytes": free_bytes,
        "disk_suffices": free_bytes >= plan.file_bytes,
        "quantization_config": quantization_config(plan),
        "decisions": _decisions(plan),
    }


def plan_to_text(found: Mapping[str, Any]) -> str:
    """The same for a reader: tensors by kind and rule, then sizes and predictions."""
    lines = [f"{found['format']}: {found['linears']} linears, {found['linear_values']:,} values"]
    kinds = Counter((d["scheme"] or "as it is", d["rule"]) for d in found["decisions"])
    lines += [f"  {count:5} tensors  {scheme:9}  {rule}" for (scheme, rule), count in kinds.items()]
    lines.append(f"  {found['left_out']:5} tensors  left out   towers, and k and v that no layer reads")
    lines.append(
        f"tensors {found['tensor_bytes']:,} bytes, files {found['file_bytes']:,} in {len(found['shards'])}"
    )
    lines.append(
        f"loaded {found['loaded_gib']:.3f} GiB, KV cache {found['kv_bytes_per_token']:,} bytes a token"
    )
    if found["kv_tokens"] is not None:
        lines.append(
            f"{found['kv_tokens']:,} KV tokens on {found['machine']['name']} ({found['kv_tokens_basis']})"
        )
    unfit = Counter((m["module"].rpartition(".")[2], m["kernel"], m["reason"]) for m in found["not_eligible"])
    lines += [
        f"no kernel: {count} x {kind}, {kernel}: {reason}" for (kind, kernel, reason), count in unfit.items()
    ]
    free = found["disk_free_bytes"] / GIB
    lines.append(f"disk: {free:.1f} GiB free, {'enough' if found['disk_suffices'] else 'NOT ENOUGH'}")
    return "\n".join(lines)
