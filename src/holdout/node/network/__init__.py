"""How messages and blobs travel between members, and what is refused on the way.

transport     the `Transport` that a node needs, and Zenoh behind it
zenoh_config  Zenoh's settings: TLS, and who may write under which key
gossip        small messages: passed on once, pulled if they got lost; heartbeats
blobs         gradients, bodies and models by digest: served and fetched
queues        messages that came in, and work for peers: bounded, fair between peers
refusals      what Zenoh refused, counted from its log
"""
