// Everything that a training program needs; include this one.
#pragma once

#include <fsdp/agreement.h>
#include <fsdp/batch_transfer.h>
#include <fsdp/checkpoint.h>
#include <fsdp/dtype.h>
#include <fsdp/engine.h>
#include <fsdp/error.h>
#include <fsdp/loss_scaler.h>
#include <fsdp/memory.h>
#include <fsdp/mesh.h>
#include <fsdp/optim.h>
#include <fsdp/options.h>
#include <fsdp/plan.h>
#include <fsdp/prefetcher.h>
#include <fsdp/program.h>
#include <fsdp/rank_values.h>
#include <fsdp/recompute.h>
#include <fsdp/run_options.h>
#include <fsdp/run_plan.h>
#include <fsdp/safetensors.h>
#include <fsdp/safetensors_folder.h>
#include <fsdp/sampler.h>
#include <fsdp/status_line.h>
#include <fsdp/sync_batch_norm.h>
#include <fsdp/trace.h>
#include <fsdp/unit.h>
