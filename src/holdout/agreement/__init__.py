"""Agreement without a server: the pure core of the decentralized variant (the paper's Algorithm 3).

Events in, actions out: nothing here does I/O, keeps a clock, draws hidden randomness or holds a
tensor. The same core runs in the virtual-time simulator and in the node on a real network.
"""
