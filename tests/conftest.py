import os

from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the hub's library is imported: no test asks the hub for anything

# A shared machine is sometimes slow, and a test that passes must pass again: no deadline, the same examples each time.
settings.register_profile("mixwise", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("mixwise")
