#include "card_rates.h"

#include <string.h>

// clang-format off
static const CardRates cards[] = {  // the longer name first
    {"B300",     2250,  76, 8000, 900},
    {"B200",     2250,  76, 8000, 900},
    {"GH200",     989,  67, 4000, 450},
    {"H200",      989,  67, 4800, 450},
    {"H100 NVL",  835,  60, 3900, 300},
    {"H100 PCIe", 756,  51, 2000,  50},
    {"H100",      989,  67, 3350, 450},
    {"H800",      989,  67, 3350, 200},
    {"H20",       148,  44, 4000, 450},
    {"A100",      312,  19, 1900, 300},
    {"A800",      312,  19, 1900, 200},
    {"A40",       150,  37,  700,  25},
    {"A30",       165,  10,  930,  25},
    {"A10",       125,  31,  600,  25},
    {"L40S",      362,  91,  860,  25},
    {"L40",       181,  90,  860,  25},
    {"L4",        121,  30,  300,  25},
    {"RTX PRO 6000", 500, 125, 1790, 50},
    {"RTX 6000 Ada", 364,  91,  960, 25},
    {"RTX 5090",  210, 105, 1790,  50},
    {"RTX 4090",  165,  83, 1010,  25},
    {"RTX 3090",   71,  36,  940,  25},
};
// clang-format on
static const CardRates other = {"", 100, 20, 500, 25};

const CardRates* card_rates_find(const char* device_name) {
    for (unsigned i = 0; i < sizeof cards / sizeof *cards; i++) {
        if (strstr(device_name, cards[i].name) != NULL) { return &cards[i]; }
    }
    return &other;
}
