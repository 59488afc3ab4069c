// Declares the program's commands. Each runs on every rank. All ranks together refuse wrong input
// before the first step. Output goes to `console`, which only rank 0 shows.
#pragma once

#include <fsdp/error.h>
#include <fsdp/mesh.h>

#include "bert_qa/run/settings.h"
#include "terminal/console.h"

namespace bert_qa {

// Runs `init`.
void initialise(const Settings& settings, const fsdp::Mesh& mesh, terminal::Console& console);
// Runs `finetune`. Keeps `place.step` up to date for error lines.
void finetune(const Settings& settings, const fsdp::Mesh& mesh, fsdp::ErrorPlace& place,
              terminal::Console& console);
// Runs `predict` or `evaluate`.
void answer_file(const Settings& settings, const fsdp::Mesh& mesh, terminal::Console& console);

}  // namespace bert_qa
