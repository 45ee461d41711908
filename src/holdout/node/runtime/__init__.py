"""One node that runs: the agreement core, driven, with the member's worker beside it.

folder           a node's folder: joined to a network once, read at every start
node             puts all parts together, runs them, ends them in order
service          the driver: events to the player, actions carried out
pacing           how long to wait for others, and the timers
jobs             what the player asks to be computed: gradients, ballots, models
learner_client   the node's side of the process that runs the member's worker
learner_process  that process
archive          the store on a thread of its own
measure          where time goes, and what is counted
status           what the node says about itself: status socket, metrics
"""
