"""Methods: how a loss is minimised. A method is a frozen record with `init(key) → state`,
`step(state) → state`, `losses(state) → (actual, true)` and `network(state)`, all pure;
`sapm.training.loop` runs any of them."""
