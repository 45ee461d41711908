"""Replies as plain values: whatever a node hands over, afterwards each value has its proper type.

Over the network only bytes arrive, which Flower turns into records. Flower's simulation passes
Python objects from process to process instead, and these may hold anything: an array whose shape is
None, a metric that is a text, an error whose code is a list. Here such a reply is built anew from
values of exactly the right types, or refused. Numbers of numpy and torch become Python's.
"""

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict


def plain_content(reply: Message) -> RecordDict:
    """The records of a reply, built anew; any exception means that it is not one."""
    records = reply.content
    if not isinstance(records, RecordDict):
        raise TypeError(f"a {type(records).__name__} in place of records")
    return RecordDict({_text(name): _record(record) for name, record in records.items()})


def take_content(reply: Message) -> RecordDict:
    """`plain_content`, which the reply then holds no longer: whoever keeps it keeps no arrays."""
    content = plain_content(reply)
    for name in list(reply.content):
        del reply.content[name]
    return content


def plain_error(reply: Message) -> Error:
    """The error of a reply, built anew; any exception means that it is not one."""
    return Error(_whole(reply.error.code), str(reply.error.reason or ""))


def _record(record: object) -> ArrayRecord | MetricRecord | ConfigRecord:
    if isinstance(record, ArrayRecord):
        return ArrayRecord({_text(name): _array(array) for name, array in record.items()})
    if isinstance(record, MetricRecord):
        return MetricRecord({_text(name): _metric(value) for name, value in record.items()})
    if isinstance(record, ConfigRecord):
        return ConfigRecord({_text(name): value for name, value in record.items()})
    raise TypeError(f"a {type(record).__name__} in place of a record")


def _array(array: object) -> Array:
    if not isinstance(array, Array) or type(array.data) is not bytes:
        raise TypeError("an array that holds no bytes")
    shape = tuple(_whole(side) for side in array.shape)
    return Array(_text(array.dtype), shape, _text(array.stype), array.data)


def _metric(value: object) -> int | float | list[int] | list[float]:
    if not isinstance(value, list):
        return _number(value)
    numbers = [_number(number) for number in value]
    if all(type(number) is int for number in numbers):
        return [int(number) for number in numbers]
    return [float(number) for number in numbers]


def _number(value: object) -> int | float:
    return float(value) if isinstance(value, float) else _whole(value)


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"a {type(value).__name__} in place of a number")
    return int(value)


def _text(value: object) -> str:
    if type(value) is not str:
        raise TypeError(f"a {type(value).__name__} in place of a text")
    return value
