/*
staging.h -- the rings after ops_stage(), ops_results() and ops_deliver() of ops.h: what a job's small arrays
(tokens, targets, sequence ends; losses) cost the step loop.

    host    fill m | fill m+1 | fill m+2 |                  pinned ring
    copy           H2D m | H2D m+1 |                        copy_stream; ahead of the kernels by what fits
    compute                | job m  ---- | job m+1 ----     waits for its own arrays only

One ring in pinned memory and one of equal size on the card, each array at the same offset in both. A job's
region is used again once the card has passed the second ops_stage_begin() after it; the host waits for that
only where it is a whole ring ahead. 64k tokens are about 1.3 MiB, so that is a dozen jobs.
*/
#pragma once

#include "../ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct OpsStaging OpsStaging;

OpsStaging* staging_create(void);  // rings of STAGING_RING_BYTES
void staging_free(OpsStaging* staging);

enum { STAGING_RING_BYTES = 16 << 20 };
// Rings of another size. Waits for the card; pointers of ops_stage() and ops_results() so far are void. Three
// jobs should fit. A job that does not is served too, slowly: its arrays get memory of their own (kept for
// later ones), and the host waits for all jobs but the last; a line on stderr says so once.
void staging_resize(OpsContext* ops, size_t ring_bytes);
int64_t staging_num_misfits(const OpsContext* ops);  // arrays that did not fit, so far

#ifdef __cplusplus
}
#endif
