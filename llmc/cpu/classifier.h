/*
classifier.h -- passes over a row of logits that the whole classifier and a share of it have in common.
*/
#pragma once

#include "context.h"
