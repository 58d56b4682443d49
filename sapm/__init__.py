"""sapm: train deep networks on least-squares problems by self-adaptive weighted auxiliary variables."""

__version__ = "0.1.0.dev0"
