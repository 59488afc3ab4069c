// Declares the program's commands. Each command runs on every rank. All ranks refuse wrong input
// together, before the first step. The output is printed to `console`, which shows it only on rank
// 0.
#pragma once

#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include "bert_qa/run/settings.h"
#include "terminal/console.h"

namespace bert_qa {

// Runs `init`.
void initialise(const Settings& settings, const fsdp::Mesh& mesh, terminal::Console& console);
// Runs `finetune`. Updates `place.step`, which error lines show.
void finetune(Settings settings, const fsdp::Mesh& mesh, fsdp::ErrorPlace& place,
              terminal::Console& console);
// Runs `predict` or `evaluate`.
void answer_file(const Settings& settings, const fsdp::Mesh& mesh, terminal::Console& console);

}  // namespace bert_qa
