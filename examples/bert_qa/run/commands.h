// What the program does, each on every rank. What can be refused is refused before the first step,
// by all ranks together. What is said goes to `console`, of rank 0 alone.
#pragma once

#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include "bert_qa/run/settings.h"
#include "terminal/console.h"

namespace bert_qa {

void initialise(const Settings& settings, const fsdp::Mesh& mesh, terminal::Console& console);
// Keeps `place.step` up to date for error lines.
void finetune(const Settings& settings, const fsdp::Mesh& mesh, fsdp::ErrorPlace& place,
              terminal::Console& console);
// predict and evaluate.
void answer_file(const Settings& settings, const fsdp::Mesh& mesh, terminal::Console& console);

}  // namespace bert_qa
