"""The parts that models are made of; each takes its weights from a `Weights` scope when it is built."""
