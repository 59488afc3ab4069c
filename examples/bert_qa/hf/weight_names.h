// Maps tensor names of current and older BERT files to parameter names.
#pragma once

#include <fsdp/checkpoint.h>

#include <string>
#include <string_view>
#include <vector>

namespace bert_qa {

// Returns the name of a tensor in current models. It adds `bert.` to an encoder's own names,
// replaces gamma and beta of older files by weight and bias, and removes the prefixes of wrappers
// (`module.`, `_orig_mod.`, `model.`).
std::string current_name(std::string_view stored);

// Returns true for a parameter of a question-answering head: the ends of the answer, and its type
// with the pooler. A pretrained encoder does not have these heads.
bool is_head(std::string_view fqn);

// Returns options to load a whole model by current names. The file may have unused tensors (pooler,
// pretraining heads, position_ids) and may lack the question-answering heads. Tensors of `head`,
// which may be null, have priority.
fsdp::LoadOptions load_options(const fsdp::SafetensorsFile* head);

// Returns options to load only a head, which must have the ends of the answer. Other parameters
// keep their initial values, and other tensors of the file are ignored.
fsdp::LoadOptions head_options();

// Returns notes for the user about a load with these options.
std::vector<std::string> notes_of(const fsdp::LoadReport& report);

}  // namespace bert_qa
