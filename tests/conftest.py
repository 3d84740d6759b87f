"""Settings that hold for all tests."""

from hypothesis import settings

# Every run explores anew, on CI too, and prints what replays a failure. Time limits are
# pytest's business: on a busy machine a single example may well take a while.
settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("explore")
