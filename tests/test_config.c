#include "tests/parsed.h"
#include "tests/test.h"

#include "base/tensor.h"

TEST(config_sizes_have_the_published_parameter_counts) {
    static const struct {
        const char *text;
        int64_t n;
    } want[] = {{"d12", 124439808}, {"d24", 354823168}, {"d36", 774030080}, {"d48", 1557611200}};
    for (EACH(w, want)) {
        Config c = config_of(w->text);
        CHECK(config_parameters(&c) == w->n);
    }
}

/* Worked out by hand: 6 for each weight but those of embeddings, which are only looked up, and 6
 * for each channel of each layer and token of the sequence. */
TEST(config_flops_of_a_token_leave_out_what_is_looked_up) {
    Config gpt2 = config_of("layers=2,heads=2,channels=8,seq=6,vocab=11");
    Config llama = config_of("llama,layers=1,heads=1,channels=4,ffn=8,seq=6,vocab=11");
    CHECK(config_flops_per_token(&gpt2, 6) == 6 * (88 + 2 * 872 + 16) + 6 * 2 * 8 * 6);
    CHECK(config_flops_per_token(&llama, 3) == 6 * (44 + 168 + 4) + 6 * 4 * 3);
}

TEST(config_prints_what_it_parses) {
    static const char *const texts[] = {
        "d6", "llama,layers=3,heads=4,kv_heads=2,channels=64,seq=32,vocab=99",
        "layers=1,heads=1,channels=1,ffn=1,seq=1,vocab=1,bias=0", "d12,eps=1e-6,theta=5e5",
        "llama,rope_factor=32,rope_seq=100"};
    for (EACH(t, texts)) {
        char text[512];
        Config a = config_of(*t), b;
        config_print(&a, text, sizeof text);
        CHECK(config_parse(&b, text, NULL));
        CHECK(config_equal(&a, &b));
    }
}

TEST(config_refuses_with_a_reason) {
    static const struct {
        const char *text, *reason;
    } bad[] = {{"d13", "d12"},           {"layer=3", "layers"},
               {"heads=5", "channels"},  {"layers=0", "between 1 and"},
               {"layers=x", "whole"},    {"kv_heads=5", "heads"},
               {"norm=batch", "layer"},  {"d12,,d6", "comma"},
               {"bias=2", "0 or 1"},     {"eps=-1", "between 1"},
               {"eps=0", "between 1"},   {"eps=1e-50", "between 1"},
               {"vocab=1e9", "between"}, {"theta=0", "between"},
               {"rope_factor=0", "1"},   {"rope_seq=0", "between 1"},
               {"eps=inf", "between"},   {"llama,heads=256", "even"},
               {"heads=0", "between 1"}, {"kv_heads=0", "between 1"},
               {"ffn=0", "between 1"},   {"channels=0", "between 1"},
               {"seq=0", "between 1"},   {"vocab=0", "between 1"}};
    for (EACH(b, bad)) {
        Config c;
        Err e = {0};
        CHECK_REFUSED(config_parse(&c, b->text, &e), e, b->reason);
    }
}

TEST(tensor_table_holds_every_parameter_once) {
    static const char *const texts[] = {"d12",
                                        "d48",
                                        "llama,layers=3,heads=4,kv_heads=2,channels=64,vocab=99",
                                        "layers=2,heads=2,channels=8,bias=0",
                                        "layers=2,heads=2,channels=8,norm=rms",
                                        "llama,tied=1,layers=1,bias=1"};
    for (EACH(text, texts)) {
        Config c = config_of(*text);
        OWNED(tensors_free) TensorTable t = tensors_describe(&c);
        int64_t n = 0, in_slices = 0;
        for (int j = 0; j < t.n; j++) n += tensor_size(&t.t[j]);
        for (int j = 0; j < t.n_slices; j++)
            in_slices += t.t[t.slices[j].tensor].rows * t.slices[j].cols;
        CHECK(n == config_parameters(&c));
        CHECK(in_slices == n);
        CHECK(tensors_find(&t, "h.0.qkv.weight") > 0 && tensors_find(&t, "nothing") == -1);
    }
}
