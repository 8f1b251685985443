"""The methods that have a name; nothing here imports torch, so listing names costs nothing."""

METHODS: dict[str, str] = {
    "simclr": "antipodes.methods.simclr.SimCLR",
    "sogclr": "antipodes.methods.simclr.SogCLR",
    "supcon": "antipodes.methods.simclr.SupCon",
    "moco": "antipodes.methods.moco.MoCo",
    "moco-v1": "antipodes.methods.moco.MoCoV1",
    "moco-v2": "antipodes.methods.moco.MoCo",
    "sane": "antipodes.methods.sane.SANE",
    "sane-imagenet": "antipodes.methods.sane.SANEImageNet",
    "instance": "antipodes.methods.instance.InstanceDiscrimination",
    "cmc": "antipodes.methods.cmc.CMC",
    "local-aggregation": "antipodes.methods.local_aggregation.InstanceAggregation",
    "cmc-local-aggregation": "antipodes.methods.local_aggregation.CMCAggregation",
    "hnssl": "antipodes.methods.hnssl.HNSSL",
}
"""Name of a method -> dotted path of its class."""
