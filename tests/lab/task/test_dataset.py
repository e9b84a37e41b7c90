import numpy as np

from quietbit_lab.task.dataset import Examples, Partition
from refusals import refuses


def test_partitions_cover_every_example_once():
    owners = np.array([4, 2, 4, 9, 2, 4])
    for split in (Partition.one_each(6), Partition.groups(6, 4, 0), Partition.by_owner(owners)):
        assert sorted(split.members.tolist()) == list(range(6))
        assert split.sizes.sum() == 6
        assert np.concatenate([split.of(c) for c in range(split.sizes.size)]).size == 6
    by_owner = Partition.by_owner(owners)
    assert [sorted(by_owner.of(c).tolist()) for c in range(3)] == [[1, 4], [0, 2, 5], [3]]


def test_small_owners_can_be_left_out():
    owners = np.array([4, 2, 4, 9, 2, 4])
    split = Partition.by_owner(owners, least=2)
    assert split.sizes.tolist() == [2, 3]
    assert 3 not in split.members
    with refuses("least samples of a client", 4):
        Partition.by_owner(owners, least=4)


def test_labels_must_fit():
    with refuses("number of labels", 2):
        Examples(np.zeros((3, 2)), np.zeros(2, dtype=np.int64))
