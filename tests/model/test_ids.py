"""UUIDs made and read by the thousand are what `uuid` makes and reads."""

from uuid import RFC_4122, UUID

import pytest

from scheduler.model.ids import new_ids, read_id

ID = "958d42f1-4fe6-4832-b7ea-bcec679865a1"
FORMS = [
    ID,
    ID.upper(),
    ID.replace("-", ""),
    f"{{{ID}}}",
    f"urn:uuid:{ID}",
    str(UUID(int=0)),
    str(UUID(int=2**128 - 1)),
]
WRONG = ["", "-", ID[:-1], f"{ID}0", ID.replace("9", "g"), "958d42f1", "é" * 32]


@pytest.mark.parametrize("text", FORMS)
def test_an_id_is_read_as_uuid_reads_it(text: str) -> None:
    read, expected = read_id(text), UUID(text)
    assert read == expected
    assert (hash(read), str(read), read.bytes, read.is_safe) == (
        hash(expected),
        str(expected),
        expected.bytes,
        expected.is_safe,
    )


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        UUID(text)
    with pytest.raises(ValueError):
        read_id(text)


def test_new_ids_are_random_ones_of_version_4() -> None:
    made = list(new_ids(1000))
    assert len(set(made)) == 1000
    assert {(each.version, each.variant) for each in made} == {(4, RFC_4122)}
    assert list(new_ids(0)) == []
