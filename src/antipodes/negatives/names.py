"""The policies that have a name; nothing here imports torch, so listing names costs nothing."""

POLICIES: dict[str, str] = {
    "oracle": "antipodes.negatives.oracle.Oracle",
}
"""Name of a policy -> dotted path of its class."""
