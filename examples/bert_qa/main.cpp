// bert_qa init | finetune | predict | evaluate runs question answering with BERT on sharded
// parameters.
#include <fsdp/agreement.h>
#include <fsdp/run_options.h>

#include <cstdio>
#include <exception>

#include "bert_qa/run/command_line.h"
#include "bert_qa/run/commands.h"
#include "terminal/console.h"

namespace {

int run(const bert_qa::CommandLine& line, const fsdp::Mesh& mesh, fsdp::ErrorPlace& place,
        terminal::Console& console) {
  if (!line.help.empty()) {
    console.print(line.help);
    return 0;
  }
  switch (line.settings.command) {
    case bert_qa::Command::kInit:
      bert_qa::initialise(line.settings, mesh, console);
      break;
    case bert_qa::Command::kFinetune:
      bert_qa::finetune(line.settings, mesh, place, console);
      break;
    case bert_qa::Command::kPredict:
    case bert_qa::Command::kEvaluate:
      bert_qa::answer_file(line.settings, mesh, console);
      break;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bert_qa::CommandLine line;
  std::exception_ptr usage;
  try {
    line = bert_qa::parse_command_line(argc, argv);
  } catch (const std::exception&) {
    usage = std::current_exception();  // rethrown on all ranks together, so that it is printed once
  }
  // Help and usage errors compute nothing. They run on the CPU, so that no warning about GPUs
  // precedes them.
  fsdp::RunOptions options = line.settings.run;
  if (usage || !line.help.empty()) options.mesh.device = fsdp::DeviceKind::kCpu;
  // The consoles outlive the mesh, because a console waits for its reader after all ranks have
  // finished.
  terminal::Console shown(stdout), silent(nullptr);
  return fsdp::run_program(
      [&](const fsdp::Mesh& mesh, fsdp::ErrorPlace& place) {
        fsdp::run_or_throw_on_all_ranks(mesh, "reading the command line", [&] {
          if (usage) std::rethrow_exception(usage);
        });
        mesh.agree("command line", line.words);
        return run(line, mesh, place, mesh.rank() == 0 ? shown : silent);
      },
      options);
}
