"""The policies that have a name; nothing here imports torch, so listing names costs nothing."""

POLICIES: dict[str, str] = {
    "glofnd": "antipodes.negatives.glofnd.GloFND",
    "ifnd": "antipodes.negatives.ifnd.IFND",
    "fnc": "antipodes.negatives.fnc.FNC",
    "ring": "antipodes.negatives.ring.Ring",
    "cave": "antipodes.negatives.cave.Cave",
    "hardest": "antipodes.negatives.hardest.Hardest",
    "dcl": "antipodes.negatives.debiased.DCL",
    "hcl": "antipodes.negatives.debiased.HCL",
    "oracle": "antipodes.negatives.oracle.Oracle",
}
"""Name of a policy -> dotted path of its class."""
