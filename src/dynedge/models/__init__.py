"""The systems: EDGE and whatever it is compared with, all under the contract of contract.py."""
