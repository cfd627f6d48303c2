"""deepspeed.initialize gets no model, as in a trainer without a separate reference model."""

import tiny

tiny.start()
reference_model = None  # with adapters, the policy without them serves as the reference
tiny.prepare(reference_model, tiny.config())
