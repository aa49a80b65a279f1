# One target for each check; what CI runs is what you run.

.PHONY: test-clients

# The real clients through berth and the simulator: tests/clients/README.md.
test-clients:
	tests/clients/run.sh
