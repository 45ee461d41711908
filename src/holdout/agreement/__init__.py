"""Agreement without a server: the pure core of the decentralized variant (the paper's Algorithm 3).

Events in, actions out: nothing here does I/O, keeps a clock, draws hidden randomness or holds a
tensor. The same core runs in the virtual-time simulator and in the node on a real network. The
protocol is described in `docs/protocol.md`; its parts, from the outside in:

    player         the state machine of one worker, over all rounds
    chain_sync     rounds that this worker has missed, or that have not begun here
    round          one round: takes verified messages in, and ends with a certificate
    learning_half  its first half: updates and ballots
    periods        its second half: leads, votes, recovery
    votes          counts votes and ranks leads
    validation     which blocks are valid here
    blocks         a block: assembled by a leader, re-checked by everybody
    headers        its header, and the chain of headers
    counting       ballots -> the updates that pass
    aggregate      updates -> the next model, bit for bit
    context, safety                  what a player shares among its parts; what it must not forget
    events                           what happens to a player, and what it asks for
    messages, wire, codec            messages, how they are read, and canonical bytes
    draws, sortition                 who holds which role, and the proofs of it
    keys, ed25519, ecvrf             signatures and the lottery's VRF
    params, sizing, guarantees, tails    a network's constants, good sizes, and what they promise
"""
