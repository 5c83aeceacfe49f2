from hypothesis import settings

# A shared machine is sometimes slow, and a test that passes must pass again: no deadline, the same examples each time.
settings.register_profile("mixwise", deadline=None, derandomize=True, print_blob=False)
settings.load_profile("mixwise")
