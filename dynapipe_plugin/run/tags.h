/*
tags.h -- every tag that messages between ranks have, in ranges of their own: a message of one part of the
program is never taken for another's, not even where a rank ends by an error while others still run.
*/
#pragma once

#include "transport.h"

enum {
    TAG_STEP = 0,                         // executor_tag()
    TAG_FORWARD = TRANSPORT_TAG_END / 4,  // + executor_tag() of micro-batch 0, as these pass in their order
    TAG_PROGRESS = TAG_FORWARD + (1 << 12),  // progress.c
    TAG_LINK,                                // link_probe.c
    TAG_COLLECTIVE = TRANSPORT_TAG_END / 2,  // + operation (collective.c)
    TAG_PIECES = TRANSPORT_TAG_END / 4 * 3,  // piece_move.c
    TAG_ROLL,                                // session_hosts.c
};
