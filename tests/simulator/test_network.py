"""The virtual network: time, delays, and everything that keeps a message from arriving."""

from hypothesis import given
from hypothesis import strategies as st

from holdout.agreement.params import MILLISECOND
from holdout.simulator.network import (
    CALM,
    FOREVER,
    Agenda,
    Cut,
    SimulatedNetwork,
    Weather,
    mask,
    partition,
)

SECOND = 1_000 * MILLISECOND


class Office:
    """A network of workers that only write down what they get, and when."""

    def __init__(self, n=4, seed=0, *, weather=CALM, label=lambda data: (data[0], 0)):
        self.agenda = Agenda()
        self.network = SimulatedNetwork(self.agenda, n, seed, weather=weather, label=label)
        self.got = [[] for _ in range(n)]
        self.network.connect(self._receiver(worker) for worker in range(n))

    def _receiver(self, worker):
        return lambda item: self.got[worker].append((self.agenda.now, *item))

    def run(self, until=FOREVER):
        while self.agenda.step(until):
            pass
        return self.got


@given(st.lists(st.integers(0, 1000), max_size=30))
def test_things_happen_in_the_order_of_their_time_and_then_of_their_planning(times):
    agenda, happened = Agenda(), []
    for place, time in enumerate(times):
        agenda.at(time, happened.append, (time, place))
    while agenda.step():
        assert agenda.now == happened[-1][0]
    assert happened == sorted(happened)


def test_what_is_planned_for_the_past_happens_now():
    agenda, happened = Agenda(), []
    agenda.at(10, lambda _: agenda.at(3, lambda _: happened.append(agenda.now), None), None)
    while agenda.step():
        pass
    assert happened == [10]


def test_a_broadcast_reaches_all_others_as_the_same_object():
    office, data = Office(), bytes(100)
    office.network.broadcast(1, data)
    office.run()
    assert [len(got) for got in office.got] == [1, 0, 1, 1]
    assert all(item[2] is data for got in office.got for item in got)
    assert (office.network.messages, office.network.bytes) == (3, 300)


def test_disturbed_and_undisturbed_broadcasts_count_the_same():
    counts = []
    for cuts in ((), (Cut(0, 0),)):
        office = Office(5)
        for cut in cuts:
            office.network.add_cut(cut)
        office.network.broadcast(0, b"x", without=3)
        office.run()
        counts.append((office.network.messages, [len(got) for got in office.got]))
    assert counts[0] == counts[1] == (3, [0, 1, 1, 0, 1])


def test_delays_lie_within_the_weather_and_messages_overtake_each_other():
    weather = Weather(delay_min=5000, delay_max=9000, jitter=3000)
    office = Office(weather=weather)
    for number in range(200):
        office.network.send(0, 1, bytes([number]))
    office.run()
    times = [time for time, _, _ in office.got[1]]
    assert 5000 <= min(times) <= max(times) <= 12000
    order = [data[0] for _, _, data in office.got[1]]
    assert order != sorted(order)


def test_the_same_seed_gives_the_same_network():
    def arrivals(seed):
        office = Office(seed=seed, weather=Weather(loss=0.3, copies=0.3, spikes=0.3, spike_max=99))
        for _ in range(50):
            office.network.broadcast(2, b"x")
        return office.run()

    assert arrivals(1) == arrivals(1)
    assert arrivals(1) != arrivals(2)


def test_loss_copies_and_spikes_come_at_their_rates():
    office = Office(weather=Weather(loss=0.4, copies=0.25, spikes=0.1, spike_max=60 * SECOND))
    for number in range(4000):
        office.network.send(0, 1, number.to_bytes(2, "big"))
    office.run()
    arrived = len({data for _, _, data in office.got[1]})
    assert abs(1 - arrived / 4000 - 0.4) < 0.04
    assert abs((len(office.got[1]) - arrived) / arrived - 0.25) < 0.04
    late = sum(time > SECOND for time, _, _ in office.got[1])
    assert abs(late / len(office.got[1]) - 0.1) < 0.04


def test_a_one_way_cut_stops_one_direction_while_it_lasts():
    office = Office()
    office.network.add_cut(Cut(mask([0]), mask([1]), start=1000, end=5000))
    for time in (0, 2000, 6000):
        office.agenda.at(time, lambda _: office.network.send(0, 1, b"there"), None)
        office.agenda.at(time, lambda _: office.network.send(1, 0, b"back"), None)
    office.run()
    assert [len(office.got[1]), len(office.got[0])] == [2, 3]


def test_what_a_cut_holds_arrives_when_it_ends():
    office = Office()
    office.network.add_cut(Cut(mask([0]), mask([1]), end=7 * SECOND, held=True))
    office.network.send(0, 1, b"x")
    office.run()
    ((time, _, _),) = office.got[1]
    assert 7 * SECOND < time < 8 * SECOND


def test_a_partition_cuts_both_ways_and_heals():
    office = Office(5)
    for cut in partition([0, 1], 5, start=0, end=SECOND):
        office.network.add_cut(cut)
    for worker in range(5):
        office.network.broadcast(worker, bytes([worker]))
    office.run(SECOND)
    heard = [sorted(source for _, source, _ in got) for got in office.got]
    assert heard == [[1], [0], [3, 4], [2, 4], [2, 3]]
    office.network.broadcast(0, b"x")
    office.run()
    assert all(len(got) > 1 for got in office.got[1:])


def test_healing_ends_all_cuts_but_those_that_last():
    office = Office()
    lasting = Cut(mask([0]), mask([3]))
    for cut in (lasting, Cut(mask([0]), mask([1])), Cut(mask([0]), mask([2]), end=10**9)):
        office.network.add_cut(cut)
    office.network.heal(keep=[lasting])
    office.network.broadcast(0, b"x")
    office.run()
    assert [len(got) for got in office.got] == [0, 1, 1, 0]


def test_a_hold_concerns_one_kind_of_message_only():
    office = Office(label=lambda data: (data[0], data[1]))
    everybody = mask(range(4))
    only = frozenset({(4, 2)})
    office.network.add_cut(Cut(everybody, mask([1]), end=SECOND, held=True, only=only))
    office.network.broadcast(0, bytes([4, 2]))
    office.network.broadcast(0, bytes([4, 1]))
    office.run()
    times = {data: time for time, _, data in office.got[1]}
    assert times[bytes([4, 2])] > SECOND > times[bytes([4, 1])]
    assert all(time < SECOND for time, _, _ in office.got[2])


def test_a_tap_sees_what_is_sent_and_may_hold_or_stop_it():
    office, seen = Office(), []

    def tap(source, target, data):
        seen.append((source, target, data))
        return {1: 0, 2: SECOND, 3: FOREVER}[target]

    office.network.tap = tap
    office.network.broadcast(0, b"x")
    office.run()
    assert seen == [(0, 1, b"x"), (0, 2, b"x"), (0, 3, b"x")]
    assert [len(got) for got in office.got] == [0, 1, 1, 0]
    assert office.got[2][0][0] > SECOND


def test_relaying_reaches_everybody_in_a_small_network_and_a_few_in_a_large_one():
    small, large = Office(6), Office(60)
    small.network.relay(0, b"x", without=1)
    large.network.relay(0, b"x", without=1)
    small.run()
    large.run()
    assert [len(got) for got in small.got] == [0, 0, 1, 1, 1, 1]
    assert sum(len(got) for got in large.got) <= 3
