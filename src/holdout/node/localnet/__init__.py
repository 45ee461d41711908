"""A whole network on one machine, for rehearsals.

launcher    makes the network, starts its nodes, watches, ends and compares them
lying_node  a node that lies, and the lies it can tell
"""

LIES = (
    "coalition",
    "equivocate",
    "withhold",
    "garbage",
    "replay",
    "impersonate",
    "flood",
    "silent",
    "late",
    "just-in-time",
    "nonsense",
)
"""docs/operating.md says what each one does."""
