/*
classifier.h -- passes over a row of logits shared by the whole classifier and a share of it.
*/
#pragma once

#include "context.h"
