"""The models: EDGE, its count memory and the baselines, all under the contract of base.py."""
