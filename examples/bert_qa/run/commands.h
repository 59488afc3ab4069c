// What the program does, each on every rank. What can be refused is refused before the first step,
// by all ranks together.
#pragma once

#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include "bert_qa/run/settings.h"

namespace bert_qa {

void initialise(const Settings& settings, const fsdp::Mesh& mesh);
// Keeps `place.step` up to date for error lines.
void finetune(const Settings& settings, const fsdp::Mesh& mesh, fsdp::ErrorPlace& place);
// predict and evaluate.
void answer_file(const Settings& settings, const fsdp::Mesh& mesh);

}  // namespace bert_qa
