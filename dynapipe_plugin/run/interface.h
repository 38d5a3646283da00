/*
interface.h -- what the plugin asks of the structs that a program hands in (dynapipe.h), said in words:
functions that must be there, members that are kept for later and must be zero.
*/
#pragma once

#include "../../util/status.h"
#include "../dynapipe.h"

// STATUS_OUT_OF_RANGE names the member.
Status interface_check_model(const DynapipeModel_v1* api);
Status interface_check_params(const DynapipeParams_v1* params);
Status interface_check_blocks(const DynapipeBlocks_v1* blocks);  // its api and shapes, too
Status interface_check_piece(const char* list, int32_t idx, const DynapipePiece_v1* piece);
Status interface_check_run(const DynapipeRun_v1* run);
Status interface_check_report(const DynapipeReport_v1* report);
Status interface_check_validation(const DynapipeValidation_v1* validation);
