#include "types.h"

void mb_shape_add(MbShape* shape, int32_t enc_tokens, int32_t dec_tokens, int32_t supervised_tokens) {
    int64_t enc = enc_tokens, dec = dec_tokens;
    shape->num_seqs++;
    shape->enc_tokens += enc;
    shape->enc_squares += enc * enc;
    shape->dec_tokens += dec;
    shape->dec_squares += dec * dec;
    shape->cross_products += enc * dec;
    shape->supervised_tokens += supervised_tokens;
}
