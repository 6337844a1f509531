"""The garbage collector rests while a start makes what stays, and never longer."""

import gc

import pytest

from stillrun_store.storage import uncollected


def test_the_collector_is_off_inside_and_on_again_after_an_error():
    assert gc.isenabled()
    with pytest.raises(KeyError), uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
