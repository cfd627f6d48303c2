"""deepspeed.initialize gets no model, as a trainer does that has no reference model of its own to prepare."""

import tiny

tiny.start()
reference_model = None  # with adapters, the policy without them serves as the reference
tiny.prepare(reference_model, tiny.config())
