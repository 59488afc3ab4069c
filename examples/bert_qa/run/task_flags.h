// Adds the flags that depend on the task: SQuAD or Natural Questions.
#pragma once

#include "bert_qa/run/settings.h"

namespace CLI {
class App;
}

namespace bert_qa {

// Adds --task.
void add_task_flag(CLI::App& group, Settings& settings);
// Add the flags of Natural Questions about data and about answers.
void add_nq_data_flags(CLI::App& group, Command command, Settings& settings);
void add_nq_answer_flags(CLI::App& group, Settings& settings);

// Sets the defaults of the task for flags that the command line does not have.
// Errors: InvalidArgument kUsage if the command line has a flag of the other task.
void apply_task(const CLI::App& command, Settings& settings);

}  // namespace bert_qa
