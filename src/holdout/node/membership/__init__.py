"""Who belongs to a network, and what its members agree on before the first round.

bundles           what one member needs of a network, in one file
genesis           the genesis file: roster, parameters, first model, beacon
identity          a member's secret keys, its certificate, and the network's small authority
members           a member's side of a new network: init and reveal, member.toml, share files
network_creation  the creator's side: parameters, setup file, certificates, genesis file
model_files       models as safetensors files
seam              where one network ends and its successor begins
settings          node.toml: what a member decides for itself
"""
