// pipe_walk_letters.c -- messages that are ready and wait until their receiver takes them (pipe_pulled.h).
#include "pipe_walk.h"

void walk_letter_put(WalkStage* stage, WalkLetter letter) {
    int32_t at = stage->num_letters++;
    for (; at > stage->num_taken && stage->letters[at - 1].ready_ns > letter.ready_ns; at--) {
        stage->letters[at] = stage->letters[at - 1];
    }
    stage->letters[at] = letter;
}
