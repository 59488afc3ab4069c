// How the files of BERTs name their tensors, today and in other times.
#pragma once

#include <fsdp/checkpoint.h>

#include <string>
#include <string_view>
#include <vector>

namespace bert_qa {

// The name that today's models have for a tensor: with `bert.` before an encoder's own names, and
// LayerNorm.weight and .bias where older files say gamma and beta; without the `module.`,
// `_orig_mod.` and `model.` of what a model was wrapped in.
std::string current_name(std::string_view stored);

// A parameter of the question-answering head, which a pretrained encoder lacks.
bool is_head(std::string_view fqn);

// Tensors by their current names; the pooler, the heads of pretraining and position_ids may be left
// out, and the question-answering head may be missing. Tensors of `head` (may be null) come first.
fsdp::LoadOptions load_options(const fsdp::SafetensorsFile* head);

// For a file that holds a head, into a model whose other parameters keep their initial values; what
// else the file holds is left alone.
fsdp::LoadOptions head_options();

// What a user should be told once of a load with these options.
std::vector<std::string> notes_of(const fsdp::LoadReport& report);

}  // namespace bert_qa
