from __future__ import annotations

from weft.parallel.recorder import Event, Recorder, Total


def event(kind, size, purpose="forward", along="row"):
    return Event(kind=kind, along=along, group=4, bytes=size, seconds=0.5, purpose=purpose)


def test_totals_by_kind_dimension_and_purpose():
    recorder = Recorder()
    recorder.add(event("broadcast", 8))
    recorder.add(event("broadcast", 4, "backward"))
    recorder.add(event("all_reduce", 2, "weights", "weights"))
    assert recorder.totals() == {
        "broadcast": Total(calls=2, bytes=12, seconds=1.0),
        "all_reduce": Total(calls=1, bytes=2, seconds=0.5),
    }
    assert recorder.totals("along")["row"].bytes == 12
    assert recorder.totals("purpose")["backward"].bytes == 4
    assert recorder.total() == Total(calls=3, bytes=14, seconds=1.5)
    recorder.clear()
    assert recorder.total() == Total()


def test_a_section_holds_its_own_events_and_the_whole_has_them_too():
    recorder = Recorder()
    recorder.add(event("broadcast", 8))
    with recorder.section() as part:
        recorder.add(event("all_gather", 4))
    assert [e.bytes for e in part.events] == [4]
    assert [e.bytes for e in recorder.events] == [8, 4]
