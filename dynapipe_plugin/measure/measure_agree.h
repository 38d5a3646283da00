// measure_agree.h -- one cost model for all ranks.
#pragma once

#include "../run/session.h"

// All ranks have asked their models for bytes and state (`status`: how that went); *out becomes the same on
// all of them: where they differ, no rank's bytes are more than what it says. A collective.
Status measure_agree(CostModel* out, Dynapipe* dp, Status status);
