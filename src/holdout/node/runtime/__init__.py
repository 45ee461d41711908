"""One node that runs: the agreement core, driven, with the member's worker beside it.

folder           a node's folder: joined to a network once, read at every start
node             puts all parts together, runs them, ends them in order
service          the driver: events to the player, actions carried out
pacing           how long to wait for others, and the timers
jobs             what the player asks to be computed: gradients, ballots, models
learner_client   the node's side of the process that runs the member's worker
learner_process  that process
training_end     when the member stops training
archive          the store on a thread of its own
measure          where time goes, and what is counted
watch            what is measured of each round: histograms, the last rounds
status           what the node says about itself, on a socket in its folder
member_report    what it says about each member
alarms           what an operator should look at now
metrics          its numbers for monitoring systems
page             the page that shows it, and the address that serves page and metrics
check            tries what a node needs, before it runs
"""
