// fsdp-plan --model NAME --ranks N plans the memory and traffic of a training step, or of several
// ones as a table. It does not allocate the model.
//
// Exit codes: 0 a step fits, or no memory was given; 64 wrong usage; 65, 74 the configuration of
// a folder is wrong or cannot be read; 73, 74 the trace cannot be written; 78 no step fits, or the
// ranks cannot be arranged as requested.
#include <fmt/format.h>
#include <fsdp/error.h>
#include <fsdp/program_text.h>

#include <algorithm>
#include <string>
#include <vector>

#include "planning/command_line.h"
#include "planning/known_model.h"
#include "planning/plan_report.h"
#include "planning/plan_search.h"
#include "planning/plan_table.h"
#include "programs/run_alone.h"
#include "programs/standard_output.h"

namespace {

std::string shortage(const planning::PlanSettings& settings, const planning::Room& needed) {
  const planning::Room room = settings.room();
  if (planning::fits({.device = needed.device}, room)) {
    return fmt::format("the ranks of a host need {} of its memory, but it has {}",
                       fsdp::format_bytes(needed.host), fsdp::format_bytes(room.host));
  }
  return fmt::format("the step needs {} of device memory per rank, but {} are available",
                     fsdp::format_bytes(needed.device), fsdp::format_bytes(room.device));
}

void plan_run(planning::PlanSettings settings, planning::Planners& planners) {
  planning::use_threads_of(settings);
  planning::choose_strategy(settings, planners);
  const planning::KnownModel& model = planners.model();
  planning::PlanSearch search(settings, planners);
  fsdp::print_all("plan", planning::describe_plan(settings, model, search.plan()));
  const planning::Verdict verdict = planning::judge(settings, search);
  fsdp::print_all("plan", verdict.text);
  if (verdict.fits) return;
  throw fsdp::InvalidArgument({.what = shortage(settings, search.needed()),
                               .where = model.name,
                               .hint = "use " + verdict.remedy});
}

void plan_table(const planning::PlanSettings& settings, planning::Planners& planners) {
  const std::vector<planning::TableRow> rows = planning::plan_rows(settings, planners);
  fsdp::print_all("plan", settings.json ? planning::table_json(settings, planners.model(), rows)
                                        : planning::table_text(settings, planners.model(), rows));
  if (std::ranges::any_of(rows, &planning::TableRow::fits)) return;
  throw fsdp::InvalidArgument({.what = "none of these runs fits",
                               .where = planners.model().name,
                               .hint = "plan one of them alone to see what would help"});
}

void plan(const planning::PlanSettings& settings) {
  planning::Planners planners(planning::find_model(settings.model), settings.batch.length);
  settings.is_table() ? plan_table(settings, planners) : plan_run(settings, planners);
}

}  // namespace

int main(int argc, char** argv) {
  return fsdp::run_alone([&] {
    const planning::PlanSettings settings = planning::parse_command_line(argc, argv);
    if (settings.help.empty()) {
      plan(settings);
    } else {
      fsdp::print_all("plan", settings.help);
    }
  });
}
