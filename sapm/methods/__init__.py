"""Methods: how a loss is minimised. A method is a frozen record of options. Its `engine` has the
pure functions `init`, `step`, `losses` and `network`; `sapm.training.loop` runs any of them.
"""
