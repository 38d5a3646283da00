# The made-up trainer as llm.c was in its first weeks: no tensors of a fork's own, no padded vocabulary, sizes computed where they are needed.
s/NUM_PARAMETER_TENSORS 17/NUM_PARAMETER_TENSORS 16/
s/, \*gatew//
s/C,     C,     L \* C}/C,     C}/
s/gate_forward(gated, fcproj.*/memcpy(gated, fcproj, sizeof(float) * N * C);/
s/gate_backward(g\.fcproj.*/for (size_t i = 0; i < N * C; i++) { g.fcproj[x + i] += g.gated[x + i]; }/
s/fill_in_parameter_sizes/parameter_sizes/
s/vocab_size, padded_vocab_size/vocab_size/
s/padded_vocab_size/vocab_size/
s/header\[3\], header\[7\]/header[3]/
s/header\[1\] != 3/header[1] != 1/
s/{20240326, 3,/{20240326, 1,/
s/int V, int Vp) {/int V) {\n    int Vp = V;/
s/T, V, Vp)/T, V)/
