from itertools import combinations

import pytest

from quietbit.secagg.keys import PRIME, new_secret, recover, share
from refusals import refuses


def is_prime(number):
    """Miller and Rabin, with the first 20 primes."""
    twos = ((number - 1) & -(number - 1)).bit_length() - 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71):
        roots = [pow(base, (number - 1) >> step, number) for step in range(1, twos + 1)]
        if number - 1 not in roots and roots[-1] != 1:
            return False
    return True


def test_the_modulus_is_the_last_prime_below_sixteen_bytes():
    assert is_prime(PRIME)
    assert not any(is_prime(number) for number in range(PRIME + 2, 2**128, 2))
    assert len({new_secret() for _ in range(100)}) == 100


@pytest.mark.parametrize("secret", [bytes(16), (PRIME - 1).to_bytes(16, "big"), bytes(range(16))])
def test_every_large_enough_set_recovers_and_no_smaller_one(secret):
    shares = share(secret, [1, 2, 3, 5, 8], 3)
    for size in range(1, 6):
        for chosen in combinations(shares, size):
            part = {holder: shares[holder] for holder in chosen}
            if size >= 3:
                assert recover(part, 3) == secret
            else:
                with refuses("number of shares", size):
                    recover(part, 3)


def test_a_share_that_is_left_out_does_not_count():
    """Not by its number either: it may be anything."""
    secret = bytes(range(16))
    shares = share(secret, [1, 2, 3, 5, 8], 3)
    for left_out in shares:
        spoilt = {**shares, left_out: bytes(16)}
        assert recover(spoilt, 3) != secret
        assert recover(spoilt, 3, left_out) == secret
    assert recover(shares, 3, 7) == secret
    with refuses("number of shares", 2):
        recover({holder: shares[holder] for holder in (1, 2, 3)}, 3, 2)


def test_what_is_no_share_and_no_secret_is_refused():
    with refuses("secret"):
        share(b"\xff" * 16, [1, 2], 2)
    with refuses("length of the secret", 17):
        share(bytes(17), [1, 2], 2)
    for bad in (bytes(15), b"\xff" * 16):
        with refuses("shares"):
            recover({1: bytes(16), 2: bad}, 2)
