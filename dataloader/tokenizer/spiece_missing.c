// spiece_missing.c -- linked instead of spiece.cpp if there is no sentencepiece library.
#include "spiece.h"

const SpieceLibrary* spiece_library(void) {
    return NULL;
}
